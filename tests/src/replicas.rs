//! Two replicas of each upstream behind one gateway, with the shipped configuration. All replicas
//! use one PostgreSQL server and one Redis.

use std::collections::BTreeMap;

use postern_store::cache::testing::{TestCache, redis};
use postern_store::database::testing::{TestDatabase, postgres};
use tempfile::TempDir;

use crate::config_file::{ConfigFile, conf};
use crate::postern::Postern;
use crate::program::{Program, Running};
use crate::sensitive;
use crate::split::{Ports, auth_config, notify_config, proxy_config, quoted, with_identity};
use crate::surface::PublicApi;

/// A process that can be restarted with the same configuration.
#[derive(Debug)]
pub struct Replica {
    program: Program,
    running: Option<Running>,
}

/// A gateway process, two replicas of each upstream, and their dependencies.
#[derive(Debug)]
pub struct Replicas {
    /// Replicas of the authentication upstream.
    pub auth: [Replica; 2],
    /// Replicas of the notification upstream.
    pub notify: [Replica; 2],
    proxy: Replica,
    api: PublicApi,
    development: Postern,
    stores: (TestDatabase, TestDatabase, TestCache),
    folder: TempDir,
}

// === impl Replica ===

impl Replica {
    async fn start(program: Program) -> Self {
        let mut replica = Self {
            program,
            running: None,
        };
        replica.restart().await;
        replica
    }

    /// Starts the process, which must not be running, and waits until it is ready.
    ///
    /// # Panics
    /// If it does not become ready.
    pub async fn restart(&mut self) {
        let mut running = self.program.start();
        running.until_ready().await;
        self.running = Some(running);
    }

    /// Stops the process with SIGTERM and waits for its end.
    ///
    /// # Panics
    /// If it is not running, or ends with a status other than 0.
    pub async fn stop(&mut self) {
        let ended = self
            .running
            .take()
            .expect("the process is running")
            .stop("TERM")
            .await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    }

    /// Kills the process with SIGKILL.
    ///
    /// # Panics
    /// If it is not running.
    pub async fn kill(&mut self) {
        self.running
            .take()
            .expect("the process is running")
            .kill()
            .await;
    }
}

// === impl Replicas ===

impl Replicas {
    /// Starts all processes and their dependencies, and waits until each process is ready.
    pub async fn start() -> Self {
        let development = Postern::start().await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::os::unix::fs::symlink(conf(), folder.path().join("conf"))
            .expect("the test's folder can be written");
        let (auth_store, notify_store, cache) = (postgres().await, postgres().await, redis().await);
        let ports = [Ports::free(), Ports::free()];
        let program = |name: &str, number: usize, account: Option<&str>, file: ConfigFile| {
            let path = folder.path().join(format!("{name}-{number}.toml"));
            std::fs::write(&path, file.text()).expect("the test's folder can be written");
            let program = Program::of_workspace(name, folder.path());
            let program = program.arg("--config").arg(path.display().to_string());
            with_identity(program, &development, account, &[])
        };
        let stored = |file: ConfigFile, database: &TestDatabase| {
            file.set("database", &quoted(&database.url))
                .set("cache", &quoted(&cache.url))
        };
        let auth = async |number: usize| {
            let file = stored(auth_config(&development, ports[number]), &auth_store);
            // The tests sign in as one user more often than the default limit permits.
            let file = file.replace_table("abuse", "sign_ins = 1000000\n");
            Replica::start(program("postern-auth", number, Some("auth"), file)).await
        };
        let notify = async |number: usize| {
            let file = stored(notify_config(&development, ports[number]), &notify_store);
            Replica::start(program("postern-notify", number, Some("notify"), file)).await
        };
        let auth = [auth(0).await, auth(1).await];
        let notify = [notify(0).await, notify(1).await];
        let file = proxy_config(&development, ports[0]);
        let file = file
            .add_replica(ports[0].auth, ports[1].auth)
            .add_replica(ports[0].notify, ports[1].notify);
        // All clients of a test have the same address, to which the rate limits apply.
        let file = file.set("requests", "1000000").set("burst", "1000000");
        // The access log goes to a file: the test does not read standard output, so that a full
        // pipe would block the process.
        let file = file.set(
            "to",
            &quoted(&folder.path().join("access.log").display().to_string()),
        );
        let proxy = Replica::start(program("postern-proxy", 0, None, file)).await;
        let env: BTreeMap<String, String> = development.surface().environment().clone();
        let api = PublicApi::new(&format!("http://127.0.0.1:{}", ports[0].proxy), env);
        let stores = (auth_store, notify_store, cache);
        Self {
            auth,
            notify,
            proxy,
            api,
            development,
            stores,
            folder,
        }
    }

    /// Returns the public API of the gateway.
    #[must_use]
    pub fn surface(&self) -> &PublicApi {
        &self.api
    }

    /// Returns a token of a service account.
    pub async fn service_token(&self, account: &str) -> String {
        self.api
            .service_token(account, &self.development.password_of(account))
            .await
    }

    /// Stops every running process.
    ///
    /// # Panics
    /// If one of them ends with an error.
    pub async fn stop(self) {
        let Self {
            auth,
            notify,
            proxy,
            development,
            stores,
            folder,
            ..
        } = self;
        for mut replica in [proxy].into_iter().chain(auth).chain(notify) {
            if replica.running.is_some() {
                replica.stop().await;
            }
        }
        sensitive::keep_audit(&stores.0.url).await;
        let access_log = std::fs::read_to_string(folder.path().join("access.log"));
        sensitive::keep("access.out", &access_log.unwrap_or_default());
        development.stop().await;
    }
}
