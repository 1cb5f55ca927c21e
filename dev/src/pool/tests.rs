//! Tests of the server through the AWS SDK, over a loopback socket.

mod administration;
mod conformance;
mod custom_auth;
mod harness;
mod keys;
mod passwords;
mod races;
mod refresh;
mod sign_in;
