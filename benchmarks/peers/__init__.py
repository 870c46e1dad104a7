"""purerl's functions beside those of other libraries: speed, and the laws that each side keeps."""
