//! Journeys against stubs on loopback sockets.

mod account;
mod crash;
mod doctor;
mod guessing;
mod hostile;
mod journeys;
mod limits;
mod model;
mod refresh;
mod register;
mod restart;
mod rim;
mod social;
mod state;
mod unfinished;
