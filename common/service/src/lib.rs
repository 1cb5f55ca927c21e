//! What makes a program a server: sockets, HTTP, logs, and calls to other services.
//!
//! | modules | hold |
//! |---|---|
//! | [`signals`], [`startup`], [`service_manager`] | the start: signals, listeners, the wait for the database, notifications to systemd |
//! | [`accept`] | the accept loop of all listeners, with graceful shutdown |
//! | [`http`] | the HTTP server of the services: a router of axum with request ids, problems for all errors, limits, and one log event for each request |
//! | [`calls`] | requests to other services with the token of the user, or with that of this service, which is obtained and renewed |
//! | [`admin`], [`admin_api`], [`process_metrics`] | the admin listener: liveness, readiness and metrics, and routes that need a token |
//! | [`log`], [`trace`] | log lines, and the export of spans by OTLP |
//! | [`timeline`] | what happened to a person, a request or a notification, from several services in one order |
//!
//! **A module belongs here** if the servers of two programs need it. The gateway shares the accept
//! loop, the admin listener, logs and traces; `postern-http` serves the requests of its clients.
//!
//! **It depends on** `postern-core`, and not on `postern-store`: a start waits for a database by
//! calling a function of its caller. It knows no route of a service.

pub mod accept;
pub mod http;
pub mod log;
pub mod service_manager;
pub mod signals;
pub mod startup;
pub mod trace;

pub mod admin;
pub mod admin_api;
pub mod calls;
pub mod process_metrics;
pub mod timeline;

#[cfg(test)]
mod tests;
