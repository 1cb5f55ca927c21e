//! Journeys against stubs on loopback sockets.

mod doctor;
mod journeys;
mod refresh;
mod register;
mod rim;
mod social;
