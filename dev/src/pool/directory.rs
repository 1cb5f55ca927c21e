//! An in-memory copy of pools and app clients. Every call reads it; only administrators change it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::pool::error::{ApiError, ExceptionKind};
use crate::pool::model::{AppClient, UserPool};
use crate::pool::store::PoolStore;

/// A write-through cache of all pools and app clients.
#[derive(Debug, Default)]
pub(crate) struct PoolDirectory(RwLock<DirectoryEntries>);

#[derive(Debug, Default)]
struct DirectoryEntries {
    pools: BTreeMap<String, Arc<UserPool>>,
    clients: BTreeMap<String, Arc<AppClient>>,
}

impl PoolDirectory {
    pub(crate) async fn load(store: &PoolStore) -> Result<Self, ApiError> {
        let pools = store
            .pools()
            .await?
            .into_iter()
            .map(|pool| (pool.id.clone(), Arc::new(pool)))
            .collect();
        let clients = store.clients().await?;
        let clients = clients
            .into_iter()
            .map(|client| (client.id.clone(), Arc::new(client)))
            .collect();
        Ok(Self(RwLock::new(DirectoryEntries { pools, clients })))
    }

    fn read<T>(&self, read: impl FnOnce(&DirectoryEntries) -> T) -> T {
        read(&self.0.read())
    }

    fn write<T>(&self, write: impl FnOnce(&mut DirectoryEntries) -> T) -> T {
        write(&mut self.0.write())
    }

    pub(crate) fn pool(&self, id: &str) -> Result<Arc<UserPool>, ApiError> {
        self.read(|entries| entries.pools.get(id).map(Arc::clone))
            .ok_or_else(|| {
                ApiError::new(
                    ExceptionKind::ResourceNotFound,
                    format!("User pool {id} does not exist."),
                )
            })
    }

    pub(crate) fn client(&self, id: &str) -> Result<Arc<AppClient>, ApiError> {
        self.read(|entries| entries.clients.get(id).map(Arc::clone))
            .ok_or_else(|| {
                ApiError::new(
                    ExceptionKind::ResourceNotFound,
                    format!("User pool client {id} does not exist."),
                )
            })
    }

    /// Returns the client if it belongs to the pool.
    pub(crate) fn client_of(&self, pool_id: &str, id: &str) -> Result<Arc<AppClient>, ApiError> {
        let client = self.client(id)?;
        if client.pool_id != pool_id {
            return Err(ApiError::new(
                ExceptionKind::ResourceNotFound,
                format!("User pool client {id} does not exist."),
            ));
        }
        Ok(client)
    }

    pub(crate) fn pool_ids(&self) -> Vec<String> {
        self.read(|entries| entries.pools.keys().cloned().collect())
    }

    pub(crate) async fn put_pool(
        &self,
        store: &PoolStore,
        pool: UserPool,
    ) -> Result<Arc<UserPool>, ApiError> {
        store.put_pool(&pool).await?;
        let pool = Arc::new(pool);
        self.write(|entries| entries.pools.insert(pool.id.clone(), Arc::clone(&pool)));
        Ok(pool)
    }

    pub(crate) async fn put_client(
        &self,
        store: &PoolStore,
        client: AppClient,
    ) -> Result<Arc<AppClient>, ApiError> {
        store.put_client(&client).await?;
        let client = Arc::new(client);
        self.write(|entries| {
            entries
                .clients
                .insert(client.id.clone(), Arc::clone(&client))
        });
        Ok(client)
    }

    pub(crate) async fn delete_pool(&self, store: &PoolStore, id: &str) -> Result<(), ApiError> {
        store.delete_pool(id).await?;
        self.write(|entries| {
            entries.pools.remove(id);
            entries.clients.retain(|_, client| client.pool_id != id);
        });
        Ok(())
    }
}
