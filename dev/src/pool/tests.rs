//! Tests of the server through the AWS SDK, over a loopback socket.

mod administration;
mod conformance;
mod custom_auth;
mod harness;
mod passwords;
mod refresh;
mod sign_in;
