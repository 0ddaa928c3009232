"""From the result file of a sweep to numbers, figures, Markdown and one HTML page."""
