//! The gateway configuration of all measurements.

use std::net::SocketAddr;
use std::path::Path;

use crate::token::{CLIENT_ID, SERVICE_CLIENT_ID};

/// A gateway configuration with all features: RS256, policy, identity headers, limits, metrics, and
/// an access log to a file.
#[derive(Clone, Copy, Debug)]
pub struct GatewaySetup<'a> {
    /// Worker threads.
    pub workers: usize,
    /// Number of routes; the first is `GET /actors/{id}`.
    pub routes: usize,
    /// Lines of `[tokens]`.
    pub tokens: &'a str,
    /// Address for clients.
    pub address: SocketAddr,
    /// Address for clients with TLS, and the folder with `server.pem` and `server.key`.
    pub tls: Option<(SocketAddr, &'a Path)>,
    /// Address of the admin listener.
    pub admin: SocketAddr,
    /// Name of the variable with the secret of the admin routes, if they are offered.
    pub admin_token_env: Option<&'a str>,
    /// Upstream of all routes.
    pub upstream: SocketAddr,
    /// Issuer of users. The issuer of services has the suffix `-services` and the same keys.
    pub issuer: &'a str,
    /// Path of the access log.
    pub access_log: &'a Path,
}

impl GatewaySetup<'_> {
    /// Returns the configuration as TOML.
    #[must_use]
    pub fn toml(&self) -> String {
        let Self {
            workers,
            routes,
            tokens,
            address,
            tls,
            admin,
            admin_token_env,
            upstream,
            issuer,
            access_log,
        } = self;
        let log = access_log.display();
        let tls = tls.map_or(String::new(), |(address, folder)| {
            let folder = folder.display();
            format!(
                "[[listen]]\naddress = \"{address}\"\n[listen.tls]\ncertificate = \"{folder}/server.pem\"\n\
                 key = \"{folder}/server.key\"\n"
            )
        });
        let admin_token =
            admin_token_env.map_or(String::new(), |name| format!("token_env = \"{name}\"\n"));
        let mut text = format!(
            "workers = {workers}\n[[listen]]\naddress = \"{address}\"\n{tls}[admin]\naddress = \"{admin}\"\n{admin_token}\
             [access_log]\nto = \"{log}\"\n[tokens]\n{tokens}\n\
             [limits]\nconnections_per_address = 20000\n\
             address = {{ requests = 1000000, burst = 1000000 }}\nprincipal = {{ requests = 1000000, burst = 1000000 }}\n\
             [identity.actor]\npool_id = \"us-west-2_Actor0001\"\nclient_id = \"{CLIENT_ID}\"\nissuer = \"{issuer}\"\n\
             [identity.service]\npool_id = \"us-west-2_Service01\"\nclient_id = \"{SERVICE_CLIENT_ID}\"\n\
             issuer = \"{issuer}-services\"\njwks_url = \"{issuer}/.well-known/jwks.json\"\n\
             [upstream.origin]\naddresses = [\"{upstream}\"]\n\
             [[route]]\npath = \"/actors/{{id}}\"\nmethods = [\"GET\"]\nupstream = \"origin\"\n\
             policy = {{ users = \"any\", services = \"any\" }}\n"
        );
        for number in 1..*routes {
            text.push_str(&format!(
                "[[route]]\npath = \"/collection-{number}/{{id}}/part-{number}\"\nmethods = [\"GET\", \"PUT\"]\n\
                 upstream = \"origin\"\npolicy = {{ users = \"any\" }}\n"
            ));
        }
        text
    }
}
