//! End to end, over real sockets. Run by `./tests/run`.

mod document;
mod house;
