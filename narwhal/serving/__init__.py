"""One request's way: the HTTP/1.1 server, its routes, the exchange of a request, its replies."""
