"""Whether a server would run here: facts are gathered in one place, judged by pure functions."""
