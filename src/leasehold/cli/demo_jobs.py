"""The jobs of `leasehold demo`, and an example of what a program with jobs looks like.

An `App`, and functions that it may run. Nothing here knows that it is going to lose its worker. The pauses stand in for
work; a program of yours would say `App()` and nothing else, so that the database is found in the environment.
"""

from __future__ import annotations

from leasehold import App, Job, Snooze
from leasehold.core.settings import Settings
from leasehold.runtime.clock import SystemClock

# Settings of its own, so that the demo reads none of yours, least of all which database is meant.
app = App(settings=Settings(worker_shutdown_timeout_ms=1000))
clock = SystemClock()


@app.task(queue="media", lease="30s", timeout="2m")
async def clip(job: Job, source: str, start: int, end: int) -> str:
    """Cut a piece out of a film: asynchronous, so that many share one thread."""
    for second in range(start, end):
        job.progress(100 * (second - start) / (end - start), f"{source} {second}s")
        await clock.sleep(0.13)
    return f"{source}-{start}-{end}.mp4"


@app.task(queue="media", lease="30s", timeout="2m")
def thumbnail(job: Job, source: str, pictures: int) -> list[str]:
    """Take pictures out of a film: a plain function, which runs in a thread."""
    made: list[str] = []
    for number in range(pictures):
        job.progress(100 * number / pictures, f"picture {number + 1} of {pictures}")
        if job.stopping.wait(0.13):
            raise Snooze("1s")  # the worker is told to stop: hand the job back, it costs no attempt
        made.append(f"{source}-{number}.jpg")
    return made


def enqueue_all() -> None:
    """A handful: with five at a time, some run, one waits and one is done when the worker is lost."""
    thumbnail.enqueue("talk.mp4", 12)
    clip.enqueue("talk.mp4", 0, 36)
    clip.enqueue("talk.mp4", 60, 88)
    clip.enqueue("concert.mp4", 10, 40)
    thumbnail.enqueue("concert.mp4", 20)
    clip.enqueue("concert.mp4", 200, 225)
