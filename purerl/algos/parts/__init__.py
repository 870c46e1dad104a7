"""The equations and building blocks that the named algorithms are composed of."""
