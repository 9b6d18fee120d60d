"""What a type checker says to right and wrong calls of a task."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
from leasehold import App, Job

app = App()

@app.task
async def clip(job: Job, source: str, start: float) -> dict[str, str]:
    return {source: str(start)}

@app.task(queue="mail")
def mail(to: str, subject: str = "") -> None: ...

right = clip.enqueue("talk.mp4", 10)
clip.enqueue(source="talk.mp4", start=1.5)
mail.enqueue("ada@example.org", subject="hello")
clip.enqueue("talk.mp4")  # wrong
clip.enqueue("talk.mp4", "ten")  # wrong
mail.enqueue(to=7)  # wrong
mail.enqueue("ada@example.org", body="hello")  # wrong
reveal_type(right)
"""


def test_a_wrong_call_of_a_task_is_a_type_error_and_a_right_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)

    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )

    errors = {int(line.split(":")[1]) for line in checked.stdout.splitlines() if ": error:" in line}
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}
    assert errors == wrong, checked.stdout
    assert "JobRef[dict[str, str]]" in checked.stdout
