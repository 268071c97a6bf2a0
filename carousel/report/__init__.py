"""Figures, tables, pictures and the page that tell what a run did."""
