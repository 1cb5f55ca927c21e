//! What the routes share. Depends on `access`, `config`, `frames`, `pages`, `processes`, `sampling`, `sign_in` and
//! `tail_limit`.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::Uri;
use maud::Markup;
use postern_core::Problem;
use postern_service::http::TrustedProxies;
use tokio_util::sync::CancellationToken;
use url::form_urlencoded;

use crate::access::{Access, Person};
use crate::config::TraceLink;
use crate::frames::Frames;
use crate::pages::{self, Context};
use crate::processes::ProcessDirectory;
use crate::sampling::Sampler;
use crate::sign_in::SignInService;
use crate::tail_limit::TailLimit;

/// The parts of a running console.
#[derive(Debug)]
pub(crate) struct ConsoleState {
    pub(crate) access: Access,
    pub(crate) directory: Arc<ProcessDirectory>,
    pub(crate) sampler: Arc<Sampler>,
    pub(crate) frames: Frames,
    pub(crate) sign_in: SignInService,
    pub(crate) tail_limit: TailLimit,
    pub(crate) trace_link: Option<TraceLink>,
    /// Proxies in front of the console.
    pub(crate) trusted_proxies: TrustedProxies,
    /// Ends streams, for which a shutdown would wait.
    pub(crate) shutdown: CancellationToken,
}

// === impl ConsoleState ===

impl ConsoleState {
    /// Returns what a page without parameters is rendered from.
    pub(crate) fn context<'a>(&'a self, person: &'a Person) -> Context<'a> {
        Context {
            person,
            query: BTreeMap::new(),
            directory: &self.directory,
            sampler: &self.sampler,
            frames: &self.frames,
        }
    }

    /// Renders the fragment of a page with the query of a URI.
    ///
    /// # Errors
    /// 404 for an unknown page.
    pub(crate) async fn render(
        &self,
        person: &Person,
        page: &str,
        uri: &Uri,
    ) -> Result<Markup, Problem> {
        let query = uri.query().unwrap_or_default();
        let query = form_urlencoded::parse(query.as_bytes()).into_owned();
        let context = Context {
            query: query.collect(),
            ..self.context(person)
        };
        Box::pin(pages::render(page, &context)).await
    }
}
