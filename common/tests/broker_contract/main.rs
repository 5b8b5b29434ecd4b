//! What every implementation of the broker port promises. Each case runs on each implementation, on names of its own.

mod acking;
mod consuming;
mod declaring;
mod dying;
mod publishing;
mod rabbitmq_faults;
mod rabbitmq_speed;
mod under_test;

use under_test::{MemoryUnderTest, RabbitUnderTest, UnderTest};

/// Makes a test of every case for every implementation.
macro_rules! contract {
    ($($module:ident { $($case:ident),+ $(,)? })+) => {
        contract!(@on memory, MemoryUnderTest::start(), $($module { $($case),+ })+);
        contract!(@on rabbitmq, RabbitUnderTest::start().await?, $($module { $($case),+ })+);
    };
    (@on $implementation:ident, $start:expr, $($module:ident { $($case:ident),+ })+) => {
        mod $implementation {
            use super::*;
            $(mod $module {
                use super::*;
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() -> anyhow::Result<()> {
                    let broker: Box<dyn UnderTest> = Box::new($start);
                    crate::$module::$case(&*broker).await
                })+
            })+
        }
    };
}

contract! {
    declaring {
        declaring_twice_changes_nothing,
        other_arguments_conflict,
        another_exchange_kind_conflicts,
        an_exclusive_queue_is_closed_to_other_connections,
        an_exclusive_queue_goes_with_its_connection,
        deleting_a_queue_twice_is_no_error,
        a_queue_deleted_under_a_consumer_ends_it,
        an_unused_queue_expires,
        a_consumed_queue_does_not_expire,
        a_missing_queue_is_inspected_as_none,
    }
    publishing {
        the_default_exchange_routes_by_queue_name,
        a_direct_exchange_routes_by_equal_key,
        a_fanout_exchange_reaches_every_queue,
        a_topic_exchange_matches_words,
        two_matching_bindings_deliver_once,
        an_unroutable_mandatory_message_is_returned,
        an_unroutable_optional_message_is_confirmed,
        outcomes_stand_in_the_order_of_publications,
        every_property_arrives,
        a_large_batch_arrives_once_and_in_order,
        concurrent_publishers_lose_nothing,
    }
    consuming {
        a_missing_queue_cannot_be_consumed,
        prefetch_bounds_what_is_unacked,
        consumers_take_turns,
        a_full_consumer_is_passed_over,
        an_exclusive_consumer_shuts_others_out,
        an_abandoned_wait_loses_nothing,
        higher_priority_is_delivered_first,
        a_closed_connection_ends_its_consumers,
        a_lost_connection_ends_consumers_and_restores_topology,
    }
    acking {
        an_acked_message_is_gone,
        a_dropped_consumer_gives_back_in_order_and_redelivered,
        a_requeued_message_returns_to_its_place,
        acks_after_the_end_change_nothing,
        acking_twice_changes_nothing,
    }
    dying {
        a_rejected_message_is_dead_lettered,
        a_rejected_message_without_a_dead_letter_exchange_is_dropped,
        a_delay_queue_delivers_after_its_ttl,
        expiration_of_a_message_counts_when_shorter,
        an_expired_message_is_never_delivered,
        the_oldest_goes_beyond_the_length_limit,
        a_poison_message_ends_at_the_delivery_limit,
        unacked_messages_do_not_expire,
    }
}
