"""What tests of several packages share: a scripted upstream, and a gateway under a real server."""
