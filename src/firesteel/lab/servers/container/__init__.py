"""Servers in containers: docker, podman and compose."""
