"""Analysis: captures -> KPIs -> speed-ups -> tables, figures, report."""
