//! The service itself: start, run until a termination signal, stop.

use std::path::Path;

use postern_common::config::Env;
use postern_common::exit::Exit;
use postern_common::startup::{ConfigOrigin, ServiceProcess};
use postern_common::{Clock, log, signals};

use super::read_config;
use crate::App;

pub(super) async fn serve(path: &Path) -> Result<(), Exit> {
    let (env, shutdown) = (Env::of_process(), signals::install()?);
    let config = read_config(path, &env)?;
    log::init("postern-notify", config.log.format, &config.log.filter);
    let addresses = [config.listen, config.admin.address];
    let database = &config.database;
    let started = ServiceProcess::start("postern-notify", database, addresses, &env, shutdown);
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
