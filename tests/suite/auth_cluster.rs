//! Authentication upstreams as separate processes, with a Redis and pools that can be killed and
//! suspended.

use postern_harness::config_file::ConfigFile;
use postern_harness::paths::conf;
use postern_harness::process::{Program, Running};
use postern_harness::public_api::text;
use postern_harness::{Answer, PublicApi, ports};
use postern_store::cache::testing::RedisServer;
use postern_store::database::testing::{TestDatabase, postgres};
use serde_json::Value;
use tempfile::TempDir;

/// Replicas over one PostgreSQL and one Redis. A standalone process provides pools, actor service
/// and social provider.
pub(crate) struct AuthCluster {
    /// Process with the pools, the actor service and the social provider.
    pub(crate) standalone: Running,
    pub(crate) surface: PublicApi,
    pub(crate) redis: RedisServer,
    port: u16,
    folder: TempDir,
    database: TestDatabase,
}

/// An authentication upstream.
pub(crate) struct Replica {
    pub(crate) running: Running,
    pub(crate) surface: PublicApi,
}

/// Differences from the shipped configuration.
#[derive(Default)]
pub(crate) struct Changes {
    /// Base URL of another actor service.
    pub(crate) actor_service: Option<String>,
    /// Log filter.
    pub(crate) filter: Option<&'static str>,
    /// The URL of another cache than the cluster's Redis.
    pub(crate) cache: Option<String>,
    /// The URL of another database than the cluster's.
    pub(crate) database: Option<String>,
    /// How addresses are confirmed.
    pub(crate) confirm: Option<&'static str>,
}

impl AuthCluster {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let linked = std::os::unix::fs::symlink(conf(), folder.path().join("conf"));
        linked.expect("the folder can be written");
        let port = ports::free(13);
        let standalone = Program::of_workspace("postern", folder.path());
        let standalone = standalone.args(["--data-dir", "var", "--port", &port.to_string()]);
        let mut standalone = standalone.start();
        let _ = standalone.wait_for_line("ready").await;
        let surface = PublicApi::of_folder(&folder.path().join("var"));
        surface.until_keys().await;
        let redis = RedisServer::start(&["--save", "", "--appendonly", "no"]).await;
        Self {
            standalone,
            surface,
            redis,
            port,
            folder,
            database: postgres().await,
        }
    }

    /// Starts a replica and waits until it is ready.
    pub(crate) async fn replica(&self, changes: &Changes) -> Replica {
        let (listen, admin) = (ports::free(1), ports::free(1));
        let environment = self.surface.environment().iter();
        let environment = environment.filter(|(name, _)| !name.starts_with("POSTERN_"));
        let password = self.surface.env("POSTERN_SERVICE_AUTH_PASSWORD");
        let config = self.config(listen, admin, changes);
        let mut running = Program::of_workspace("postern-auth", self.folder.path())
            .envs(environment)
            .env("IDP_SERVICE_ACCOUNT_USERNAME", "auth")
            .env("IDP_SERVICE_ACCOUNT_PASSWORD", password)
            .config(&format!("auth-{listen}.toml"), config.text())
            .start();
        running.until_ready().await;
        let env = self.surface.environment().clone();
        Replica {
            running,
            surface: PublicApi::of_upstream(&format!("http://127.0.0.1:{listen}"), env),
        }
    }

    /// Starts two replicas.
    pub(crate) async fn pair(&self, changes: &Changes) -> [Replica; 2] {
        [self.replica(changes).await, self.replica(changes).await]
    }

    /// Returns the shipped configuration with the addresses of this cluster. The social provider
    /// redirects to standalone's callback address; the tests use its path only.
    fn config(&self, listen: u16, admin: u16, changes: &Changes) -> ConfigFile {
        let address = |name: &str| self.surface.env(name);
        let (cache, database) = (self.redis.url(), &self.database.url);
        let actor = changes.actor_service.as_deref();
        let file = ConfigFile::of_repository("auth.toml")
            .replace_port(8501, listen)
            .replace_port(8510, admin)
            .replace_port(8500, self.port)
            .social_provider(address("POSTERN_SOCIAL_URL"))
            .set("notices", "false")
            .set_text("database", changes.database.as_ref().unwrap_or(database))
            .set_text("cache", changes.cache.as_ref().unwrap_or(&cache))
            .set_text(
                "actor_service",
                actor.unwrap_or_else(|| address("POSTERN_ACTOR_URL")),
            )
            .set_text("notification_service", address("POSTERN_NOTIFY_URL"));
        let file = match changes.confirm {
            Some(confirm) => file.insert("confirm", &format!("\"{confirm}\"")),
            None => file,
        };
        match changes.filter {
            Some(filter) => file.set_text("filter", filter),
            None => file,
        }
    }
}

impl Replica {
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.surface.client().post_json(path, body).await
    }

    pub(crate) async fn refresh(&self, tokens: &Value) -> Answer {
        self.surface.refresh(text(tokens, "refreshToken")).await
    }
}
