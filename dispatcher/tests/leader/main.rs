//! The leader on real databases and a real broker: what it promises about firing, placing, and taking back.

mod claiming;
mod placing;
mod recovering;
mod registering;
mod worker;
mod world;
