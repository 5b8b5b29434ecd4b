//! Random expressions: never a panic, never a step back, never a long wait.

use std::time::{Duration, Instant};

use isocost_common::schedule::CronSchedule;

const BUDGET: Duration = Duration::from_secs(1);
/// Far above what any expression needs, far below a search that runs away; debug builds and busy machines included.
const SLOWEST: Duration = Duration::from_millis(500);

/// Knuth's MMIX generator: the same sequence on every machine.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }
}

const ZONES: [&str; 7] = [
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Asia/Shanghai",
    "Antarctica/Troll",
];

/// One part of a field whose numbers run up to about `high`; one number in sixteen is any.
fn part(random: &mut Lcg, high: usize) -> String {
    let number = |random: &mut Lcg| match random.below(16) {
        0 => random.below(2_200),
        _ if high > 1970 => 1970 + random.below(high - 1970),
        _ => random.below(high + 1),
    };
    match random.below(16) {
        0..=3 => "*".to_owned(),
        4 | 5 => format!("*/{}", number(random)),
        6 | 7 => format!("{}-{}", number(random), number(random)),
        8 => format!("{}/{}", number(random), number(random)),
        9 => format!("{}-{}/{}", number(random), number(random), number(random)),
        10 if high == 31 => random
            .pick(&["L", "LW", "L-2", "L-29", "30W", "31W", "1W", "L-31"])
            .to_owned(),
        10 if high == 12 => random.pick(&["FEB", "Nov-Jan", "feb,APR", "feb"]).to_owned(),
        10 if high == 7 => random
            .pick(&["6L", "SUNL", "2#5", "FRI#1", "MON", "fri-mon", "SUN", "0-7"])
            .to_owned(),
        _ => number(random).to_string(),
    }
}

fn field(random: &mut Lcg, high: usize) -> String {
    let parts: Vec<String> = (0..=random.below(8) / 6).map(|_| part(random, high)).collect();
    parts.join(",")
}

fn expression(random: &mut Lcg) -> String {
    const HIGHS: [usize; 7] = [59, 59, 23, 31, 12, 7, 2_099];
    let highs = match random.below(8) {
        0..=2 => &HIGHS[1..6],
        3..=5 => &HIGHS[..6],
        6 => &HIGHS[..],
        _ => &HIGHS[random.below(7)..],
    };
    let mut fields: Vec<String> = highs.iter().map(|high| field(random, *high)).collect();
    if fields.len() > 5 && random.below(16) > 0 {
        let unset = [3, 5][random.below(2)];
        fields[unset] = String::from("?");
    }
    fields.join(" ")
}

fn garbage(random: &mut Lcg) -> String {
    const PIECES: [&str; 20] = [
        " ",
        " ",
        "*",
        "/",
        "-",
        ",",
        "#",
        "L",
        "W",
        "?",
        "@",
        "@daily",
        "0",
        "9999999999999999999",
        "\u{0}",
        "\u{2003}",
        "é",
        "\u{1F600}",
        "+",
        "MON",
    ];
    (0..random.below(30)).map(|_| random.pick(&PIECES)).collect()
}

fn check(expr: &str, zone: &str, from: i64) -> bool {
    let started = Instant::now();
    let schedule = match CronSchedule::parse(expr, None, zone) {
        Ok(schedule) => schedule,
        Err(error) => {
            assert_ne!(error.to_string(), "", "{expr}");
            assert!(
                !error.to_string().contains("calendar engine"),
                "`{expr}`: {error}"
            );
            assert!(
                started.elapsed() < SLOWEST,
                "`{expr}` took {:?} to refuse",
                started.elapsed()
            );
            return false;
        }
    };
    let mut last = from;
    for next in schedule.upcoming(from, 4) {
        assert!(next > last, "`{expr}` in {zone}: {next} is not after {last}");
        last = next;
    }
    assert!(!schedule.description().contains("  "), "{expr}");
    let _ = schedule.warnings();
    assert!(
        started.elapsed() < SLOWEST,
        "`{expr}` in {zone} after {from} took {:?}",
        started.elapsed()
    );
    true
}

#[test]
fn random_expressions_never_panic_step_back_or_hang() {
    let mut random = Lcg(0x1505_C057);
    let (started, mut valid, mut tried) = (Instant::now(), 0, 0);
    while started.elapsed() < BUDGET {
        let zone = random.pick(&ZONES);
        let from = i64::try_from(random.below(2_000_000_000)).expect("31 bits") * 2_000;
        let expr = if tried % 4 == 0 {
            garbage(&mut random)
        } else {
            expression(&mut random)
        };
        valid += usize::from(check(&expr, zone, from));
        tried += 1;
    }
    // The grammar above makes about one in three a right one; without any the test would say nothing.
    assert!(valid * 10 > tried, "{valid} of {tried} were valid");
}

#[test]
fn instants_at_the_edge_of_time_do_not_panic() {
    for zone in ZONES {
        for expr in [
            "* * * * * ?",
            "0 0 12 * * ?",
            "0 0 8 ? 2 MON#5",
            "0 0 0 1 1 ? 2099",
            "0 2 10 3 *",
        ] {
            let schedule = CronSchedule::parse(expr, None, zone).expect(expr);
            for from in [
                i64::MIN,
                -1,
                0,
                95_000_000_000_000,
                95_617_584_000_000,
                253_402_300_799_000,
                i64::MAX,
            ] {
                assert!(
                    schedule.next_after(from).is_none_or(|next| next > from),
                    "{expr} after {from}"
                );
            }
        }
    }
}
