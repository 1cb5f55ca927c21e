//! The categories that a user receives. Preferences and unsubscriptions meet in the address: they
//! are those of the user's verified addresses in the profile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use postern_core::{Code, Problem};
use postern_service::http::{Json, json};
use serde_json::{Value, json as value};

use super::{ApiState, AuthenticatedCaller};
use crate::address::{ActorId, Address};
use crate::delivery::actors::ActorAddressError;
use crate::delivery::suppression::SuppressionList;
use crate::principal::Principal;
use crate::store::SuppressionQuery;

/// Maximum number of left categories that are read for an address.
const MAX_LEFT: i64 = 1000;

/// Handles `GET /notification-preferences`.
pub(super) async fn get(
    State(service): State<Arc<ApiState>>,
    AuthenticatedCaller { principal, .. }: AuthenticatedCaller,
) -> Result<Response, Problem> {
    let addresses = addresses(&service, &principal).await?;
    answer(&service, &addresses).await
}

/// Handles `PUT /notification-preferences`: changes the named categories.
pub(super) async fn put(
    State(service): State<Arc<ApiState>>,
    AuthenticatedCaller { principal, .. }: AuthenticatedCaller,
    body: Json,
) -> Result<Response, Problem> {
    let templates = service.templates.load_full();
    let known = templates.categories();
    let choices = body.read(|object| {
        let choices = object.required("categories", |field| {
            field.array(|item| {
                item.object(|choice| {
                    let unknown = "there is no such category";
                    let category = choice.required("category", |field| {
                        let name = known.get(field.string()?);
                        name.or_else(|| field.reject("unknown_category", unknown))
                    });
                    let subscribed = choice.required("subscribed", |field| field.boolean());
                    Some((*category?, subscribed?))
                })
            })
        });
        choices.map(BTreeMap::from_iter)
    })?;
    let addresses = addresses(&service, &principal).await?;
    if addresses.is_empty() {
        let detail = "the profile of the user has no verified address";
        return Err(Problem::new(Code::ValidationFailed).detail(detail));
    }
    let list = &service.suppression;
    for (category, subscribed) in &choices {
        for address in &addresses {
            let (channel, hash) = (address.channel(), address.hash());
            if *subscribed {
                list.resubscribe(channel, hash, category).await?;
            } else {
                let unsubscribed = list.unsubscribe(channel, hash, category, "preference");
                unsubscribed.await?;
            }
        }
    }
    answer(&service, &addresses).await
}

/// Returns the caller's verified addresses.
///
/// # Errors
/// 403 unless the caller is a user of the actor pool.
async fn addresses(service: &ApiState, principal: &Principal) -> Result<Vec<Address>, Problem> {
    let actor = principal.actor.as_deref().and_then(ActorId::parse);
    let detail = "only users of the actor pool have preferences";
    let actor = actor.ok_or_else(|| Problem::new(Code::RecipientNotAllowed).detail(detail))?;
    match service.actors.own_addresses(&actor).await {
        Ok(addresses) => Ok(addresses),
        Err(ActorAddressError::Unknown | ActorAddressError::Missing) => Ok(Vec::new()),
        Err(ActorAddressError::Misconfigured | ActorAddressError::Unavailable) => {
            Err(Code::Unavailable.into())
        }
    }
}

/// A user has left a category that one of the addresses has left.
async fn answer(service: &ApiState, addresses: &[Address]) -> Result<Response, Problem> {
    let mut left = BTreeSet::new();
    for address in addresses {
        let query = SuppressionQuery {
            kinds: vec![SuppressionList::Unsubscribed.kind(address.channel())],
            address: Some(address.hash()),
            after: None,
            limit: MAX_LEFT,
        };
        let entries = service.store.suppression_entries(&query).await?;
        left.extend(entries.into_iter().map(|entry| entry.category));
    }
    let templates = service.templates.load();
    let view = |category| value!({"category": category, "subscribed": !left.contains(category)});
    let categories: Vec<Value> = templates.categories().into_iter().map(view).collect();
    Ok(json(StatusCode::OK, &value!({ "categories": categories })))
}
