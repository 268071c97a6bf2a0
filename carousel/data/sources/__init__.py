"""Sources of labelled data: one file each, found by name through `carousel.data.registry`."""
