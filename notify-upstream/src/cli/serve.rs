//! The service itself: start, run until a termination signal, stop.

use std::path::Path;

use postern_core::Clock;
use postern_core::config::Env;
use postern_core::exit::Exit;
use postern_service::startup::{ConfigOrigin, ServiceProcess};
use postern_service::{log, signals};
use postern_store::database::{Database, DatabaseOptions};

use super::read_config;
use crate::App;

pub(super) async fn serve(path: &Path) -> Result<(), Exit> {
    let (env, shutdown) = (Env::of_process(), signals::install()?);
    let config = read_config(path, &env)?;
    log::init("postern-notify", config.log.format, &config.log.filter);
    let addresses = [config.listen, config.admin.address];
    let options = DatabaseOptions::new("postern-notify");
    let probe = async || Database::probe(&config.database, &options).await;
    let started = ServiceProcess::start(probe, addresses, &env, shutdown);
    let Some(process) = started.await? else {
        return Ok(());
    };
    let app = Box::pin(App::build(config, Clock::system())).await?;
    let origin = ConfigOrigin::of_file(path);
    let (listeners, shutdown) = process.run_with(app.health(), &origin);
    Box::pin(app.run(listeners, origin, shutdown)).await;
    tracing::info!("process stopped");
    Ok(())
}
