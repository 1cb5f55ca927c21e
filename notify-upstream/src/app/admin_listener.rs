//! The routes of the admin listener.

use axum::Router;
use postern_service::admin;
use postern_service::admin_api::{self, ProcessInfo};
use postern_service::startup::ConfigOrigin;

use super::App;
use crate::http::admin_routes;

impl App {
    /// Returns the routes of the admin listener: readiness, metrics, and the protected ones.
    pub(super) fn admin_router(&self, origin: ConfigOrigin) -> Router {
        let clock = self.service.clock.clone();
        origin.export(&self.service.metrics.registry);
        let info = ProcessInfo {
            service: "postern-notify",
            version: env!("CARGO_PKG_VERSION"),
            config_file: origin.file,
            config_hash: origin.hash,
            started_at: clock.now(),
        };
        let info = admin_api::info_route(move || info.clone(), self.health(), clock);
        let routes = admin_routes(&self.service, self.admin_parts.clone()).merge(info);
        let token = self.config.admin.token.as_ref();
        admin::router(self.health(), self.service.metrics.registry.clone())
            .merge(admin_api::protect(token, routes))
    }
}
