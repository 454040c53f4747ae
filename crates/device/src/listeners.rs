//! Listeners to a device's events.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

/// Largest number of events that wait for a slow listener. Later ones are dropped for it.
const EVENTS_WAITING_MAX: usize = 1024;

/// Number of each listener, and the channel for its events.
type Table = Vec<(u64, SyncSender<String>)>;

/// The device's side. Its queues pass events to the listeners. Listening ends when the last queue
/// ends.
#[derive(Debug, Clone, Default)]
pub struct Listeners {
    table: Arc<Mutex<Table>>,
}

/// The control socket's side, where listeners join.
#[derive(Debug, Clone)]
pub struct Entrance {
    table: Weak<Mutex<Table>>,
}

/// Place of one listener. Dropping it gives the place back.
#[derive(Debug)]
pub struct Subscription {
    number: u64,
    table: Weak<Mutex<Table>>,
    /// Events for the listener.
    pub events: Receiver<String>,
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listeners {
    /// Returns the side where listeners join.
    pub fn entrance(&self) -> Entrance {
        Entrance {
            table: Arc::downgrade(&self.table),
        }
    }

    /// Passes an event to all listeners.
    pub fn tell(&self, event: &str) {
        for (_, listener) in lock(&self.table).iter() {
            let _ = listener.try_send(event.to_owned());
        }
    }
}

impl Entrance {
    /// Joins the listeners; `None` if the device has ended.
    pub fn join(&self) -> Option<Subscription> {
        let table = self.table.upgrade()?;
        let (sender, events) = sync_channel(EVENTS_WAITING_MAX);
        let mut places = lock(&table);
        let number = places.last().map_or(0, |(number, _)| number + 1);
        places.push((number, sender));
        Some(Subscription {
            number,
            table: Weak::clone(&self.table),
            events,
        })
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            lock(&table).retain(|(number, _)| *number != self.number);
        }
    }
}

/// Returns the seconds since 1970. An event's `at_s` counts from the daemon's start, so it cannot
/// be compared with other logs.
pub fn unix_s() -> f64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    elapsed.map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners__one_disconnects__is_removed_from_the_table() {
        let listeners = Listeners::default();
        let entrance = listeners.entrance();
        let (first, second) = (entrance.join().unwrap(), entrance.join().unwrap());
        drop(first);
        assert_eq!(lock(&listeners.table).len(), 1);
        listeners.tell("{}");
        assert_eq!(second.events.try_recv().as_deref(), Ok("{}"));
        drop(listeners);
        assert!(second.events.recv().is_err(), "the device has ended");
        assert!(entrance.join().is_none());
    }
}
