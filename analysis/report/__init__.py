"""How numbers are shown: terminal, CSV, Markdown, figures, the HTML report."""
