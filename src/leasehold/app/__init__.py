"""The composition root, the only room that knows every room: `app` is the user's face, `worker` builds the worker."""
