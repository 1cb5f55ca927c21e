//! The pools and app clients in memory. Every call needs one, and they change only when an
//! administrator says so.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::fault::{Fault, Kind};
use crate::pool::{Client, Pool};
use crate::store::Store;

/// What is known; written through to the store.
#[derive(Debug, Default)]
pub(crate) struct Directory(RwLock<Entries>);

#[derive(Debug, Default)]
struct Entries {
    pools: BTreeMap<String, Arc<Pool>>,
    clients: BTreeMap<String, Arc<Client>>,
}

impl Directory {
    pub(crate) async fn load(store: &Store) -> Result<Self, Fault> {
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
        Ok(Self(RwLock::new(Entries { pools, clients })))
    }

    fn read<T>(&self, read: impl FnOnce(&Entries) -> T) -> T {
        read(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, write: impl FnOnce(&mut Entries) -> T) -> T {
        write(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn pool(&self, id: &str) -> Result<Arc<Pool>, Fault> {
        self.read(|entries| entries.pools.get(id).map(Arc::clone))
            .ok_or_else(|| {
                Fault::new(
                    Kind::ResourceNotFound,
                    format!("User pool {id} does not exist."),
                )
            })
    }

    pub(crate) fn client(&self, id: &str) -> Result<Arc<Client>, Fault> {
        self.read(|entries| entries.clients.get(id).map(Arc::clone))
            .ok_or_else(|| {
                Fault::new(
                    Kind::ResourceNotFound,
                    format!("User pool client {id} does not exist."),
                )
            })
    }

    /// A client that must belong to the pool.
    pub(crate) fn client_of(&self, pool_id: &str, id: &str) -> Result<Arc<Client>, Fault> {
        let client = self.client(id)?;
        if client.pool_id != pool_id {
            return Err(Fault::new(
                Kind::ResourceNotFound,
                format!("User pool client {id} does not exist."),
            ));
        }
        Ok(client)
    }

    pub(crate) fn pools(&self) -> Vec<Arc<Pool>> {
        self.read(|entries| entries.pools.values().map(Arc::clone).collect())
    }

    pub(crate) fn pool_ids(&self) -> Vec<String> {
        self.read(|entries| entries.pools.keys().cloned().collect())
    }

    pub(crate) fn clients(&self, pool_id: &str) -> Vec<Arc<Client>> {
        let of_pool = |client: &&Arc<Client>| client.pool_id == pool_id;
        self.read(|entries| {
            entries
                .clients
                .values()
                .filter(of_pool)
                .map(Arc::clone)
                .collect()
        })
    }

    pub(crate) async fn put_pool(&self, store: &Store, pool: Pool) -> Result<Arc<Pool>, Fault> {
        store.put_pool(&pool).await?;
        let pool = Arc::new(pool);
        self.write(|entries| entries.pools.insert(pool.id.clone(), Arc::clone(&pool)));
        Ok(pool)
    }

    pub(crate) async fn put_client(
        &self,
        store: &Store,
        client: Client,
    ) -> Result<Arc<Client>, Fault> {
        store.put_client(&client).await?;
        let client = Arc::new(client);
        self.write(|entries| {
            entries
                .clients
                .insert(client.id.clone(), Arc::clone(&client))
        });
        Ok(client)
    }

    pub(crate) async fn delete_pool(&self, store: &Store, id: &str) -> Result<(), Fault> {
        store.delete_pool(id).await?;
        self.write(|entries| {
            entries.pools.remove(id);
            entries.clients.retain(|_, client| client.pool_id != id);
        });
        Ok(())
    }

    pub(crate) async fn delete_client(&self, store: &Store, id: &str) -> Result<(), Fault> {
        store.delete_client(id).await?;
        self.write(|entries| entries.clients.remove(id));
        Ok(())
    }
}
