"""Output: terminal, CSV, Markdown, figures, the HTML report."""
