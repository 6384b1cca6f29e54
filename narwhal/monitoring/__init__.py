"""Watching engines: are they alive, do they work, have they come back? Its own connections, its own pace."""
