"""The harness: put a load on an endpoint of OpenAI's API, measure what its clients see, show it."""
