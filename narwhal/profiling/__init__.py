"""`narwhal profile`: what engines' work costs, measured on live engines through the legs a request takes."""
