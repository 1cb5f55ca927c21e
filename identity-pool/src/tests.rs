//! The server as its clients see it: the AWS SDK over a loopback socket, over both stores.

mod administration;
mod audit;
mod codes;
mod conformance;
mod harness;
mod keys;
mod lockout;
mod passwords;
mod races;
mod refresh;
mod sign_in;
