//! Tests of the server through the AWS SDK, over a loopback socket.

mod administration;
mod codes;
mod conformance;
mod harness;
mod keys;
mod lockout;
mod passwords;
mod races;
mod refresh;
mod sign_in;
