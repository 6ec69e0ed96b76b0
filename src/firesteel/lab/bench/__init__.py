"""Speed of a server: plan, series, figures, peers and the roofline."""
