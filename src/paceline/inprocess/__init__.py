"""Code that runs inside the user's program: injection, the recorder, settings of a recipe and the write sandbox."""
