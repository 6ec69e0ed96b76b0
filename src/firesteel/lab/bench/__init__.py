"""Speed of a server: plan, measurement, figures, peers and the roofline."""
