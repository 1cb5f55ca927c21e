//! Journeys against stubs on loopback sockets.

mod journeys;
mod refresh;
mod register;
mod rim;
mod social;
