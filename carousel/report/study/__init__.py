"""The report of a study: figures over seeds, tables, pictures and a page, all from results."""
