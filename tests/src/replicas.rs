//! Two replicas of each upstream behind one gateway, over one PostgreSQL and one Redis, with the
//! shipped configuration.

use std::collections::BTreeMap;

use postern_common::cache::testing::{TestCache, redis};
use postern_common::database::testing::{TestDatabase, postgres};
use tempfile::TempDir;

use crate::config_file::{ConfigFile, conf};
use crate::postern::Postern;
use crate::program::{Program, Running};
use crate::split::{Ports, auth_config, notify_config, proxy_config, quoted, with_identity};
use crate::surface::Surface;

/// A process that can be restarted with the same configuration.
#[derive(Debug)]
pub struct Replica {
    program: Program,
    running: Option<Running>,
}

/// Five processes and their dependencies.
#[derive(Debug)]
pub struct Replicas {
    /// Replicas of the authentication upstream.
    pub auth: [Replica; 2],
    /// Replicas of the notification upstream.
    pub notify: [Replica; 2],
    proxy: Replica,
    surface: Surface,
    development: Postern,
    _stores: (TestDatabase, TestDatabase, TestCache),
    _folder: TempDir,
}

// === impl Replica ===

impl Replica {
    async fn start(program: Program) -> Self {
        let mut replica = Self {
            program,
            running: None,
        };
        replica.start_again().await;
        replica
    }

    /// Starts the process again and waits until it is ready.
    ///
    /// # Panics
    /// If it does not become ready.
    pub async fn start_again(&mut self) {
        let mut running = self.program.start();
        running.until_ready().await;
        self.running = Some(running);
    }

    /// Stops the process as a service manager does, and waits for its end.
    ///
    /// # Panics
    /// If it is not running, or ends with a status other than 0.
    pub async fn stop(&mut self) {
        let ended = self.running.take().expect("it runs").stop("TERM").await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    }

    /// Kills the process with SIGKILL.
    ///
    /// # Panics
    /// If it is not running.
    pub async fn kill(&mut self) {
        self.running.take().expect("it runs").kill().await;
    }
}

// === impl Replicas ===

impl Replicas {
    /// Starts everything and waits until each process is ready.
    pub async fn start() -> Self {
        let development = Postern::start().await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::os::unix::fs::symlink(conf(), folder.path().join("conf"))
            .expect("the test's folder can be written");
        let (auth_store, notify_store, cache) = (postgres().await, postgres().await, redis().await);
        let all = [Ports::free(), Ports::free()];
        let program = |name: &str, number: usize, account: &str, file: ConfigFile| {
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
            let file = stored(auth_config(&development, all[number]), &auth_store);
            // One person signs in again and again.
            let file = file.table("abuse", "sign_ins = 1000000\n");
            Replica::start(program("postern-auth", number, "auth", file)).await
        };
        let notify = async |number: usize| {
            let file = stored(notify_config(&development, all[number]), &notify_store);
            Replica::start(program("postern-notify", number, "notify", file)).await
        };
        let auth = [auth(0).await, auth(1).await];
        let notify = [notify(0).await, notify(1).await];
        let file = proxy_config(&development, all[0]);
        let file = file
            .replica(all[0].auth, all[1].auth)
            .replica(all[0].notify, all[1].notify);
        // All clients of a test have one address.
        let file = file.set("requests", "1000000").set("burst", "1000000");
        // The standard output of so many requests is not read.
        let file = file.set(
            "to",
            &quoted(&folder.path().join("access.log").display().to_string()),
        );
        let proxy = Replica::start(program("postern-proxy", 0, "", file)).await;
        let env: BTreeMap<String, String> = development.surface().environment().clone();
        let surface = Surface::new(&format!("http://127.0.0.1:{}", all[0].proxy), env);
        let stores = (auth_store, notify_store, cache);
        Self {
            auth,
            notify,
            proxy,
            surface,
            development,
            _stores: stores,
            _folder: folder,
        }
    }

    /// Returns the public interface.
    #[must_use]
    pub fn surface(&self) -> &Surface {
        &self.surface
    }

    /// Returns a token of a service account.
    pub async fn service_token(&self, account: &str) -> String {
        self.surface
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
            ..
        } = self;
        for mut replica in [proxy].into_iter().chain(auth).chain(notify) {
            if replica.running.is_some() {
                replica.stop().await;
            }
        }
        development.stop().await;
    }
}
