//! What the routes share. Depends on `access`, `config`, `pages`, `processes`, `sampling`, `sign_in` and
//! `tail_limit`.

use std::sync::Arc;

use http::Uri;
use maud::Markup;
use postern_common::Problem;
use postern_common::http::TrustedProxies;
use tokio_util::sync::CancellationToken;
use url::form_urlencoded;

use crate::access::{Access, Person};
use crate::config::TraceLink;
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
            ..Context::new(person, &self.directory, &self.sampler)
        };
        Box::pin(pages::render(page, &context)).await
    }
}
