//! Ids of the request in calls to the user pool.

use aws_sdk_cognitoidentityprovider::config::interceptors::BeforeTransmitInterceptorContextMut;
use aws_sdk_cognitoidentityprovider::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_cognitoidentityprovider::error::BoxError;
use http::HeaderMap;
use postern_core::trace::Scope;

/// An interceptor that sets `X-Request-Id`, `traceparent` and `tracestate`. It runs after the
/// signature, which does not include them: Cognito ignores them, and the local pool logs them.
#[derive(Debug)]
pub(super) struct TraceHeaders;

impl Intercept for TraceHeaders {
    fn name(&self) -> &'static str {
        "TraceHeaders"
    }

    fn modify_before_transmit(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Some(scope) = Scope::current() {
            let mut fields = HeaderMap::new();
            scope.inject(&mut fields);
            let headers = context.request_mut().headers_mut();
            for (name, value) in &fields {
                headers.try_insert(name.as_str().to_owned(), value.to_str()?.to_owned())?;
            }
        }
        Ok(())
    }
}
