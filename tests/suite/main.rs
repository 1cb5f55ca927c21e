//! End to end, over real sockets. Run by `./tests/run`.

mod document;
mod hostile;
mod house;
mod identity_headers;
