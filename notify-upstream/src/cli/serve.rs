//! The service itself: start, run until a termination signal, stop.

use std::path::Path;

use postern_common::config::Env;
use postern_common::exit::Exit;
use postern_common::http::bind;
use postern_common::service_manager::ServiceManager;
use postern_common::startup::wait_for_database;
use postern_common::{Clock, log};

use super::read_config;
use crate::{App, Listeners};

pub(super) async fn serve(config: &Path) -> Result<(), Exit> {
    let env = Env::of_process();
    let config = read_config(config, &env)?;
    log::init(config.log.format, &config.log.filter);
    let (public, admin) = (
        bind(config.listen).await?,
        bind(config.admin.address).await?,
    );
    let shutdown = postern_common::signals::on_termination()
        .map_err(|error| Exit::unavailable(format!("cannot install signal handlers: {error}")))?;
    let service_manager = ServiceManager::from_env(&env);

    if !wait_for_database(
        &config.database,
        "postern-notify",
        &public,
        &admin,
        service_manager.as_ref(),
        &shutdown,
    )
    .await?
    {
        return Ok(());
    }
    let app = Box::pin(App::build(config, Clock::system())).await?;
    if let Some(service_manager) = service_manager {
        tokio::spawn(service_manager.report_health(app.health(), shutdown.clone()));
    }
    Box::pin(app.run(
        Listeners {
            public,
            admin: Some(admin),
        },
        shutdown,
    ))
    .await;
    Ok(())
}
