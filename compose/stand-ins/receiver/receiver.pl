# Takes callbacks on port 8000 and prints each as `id timestamp signatures body`, the last two in hexadecimal digits.
# Perl, because the image that the product is built on has it, and nothing else that could listen.
use strict;
use warnings;
use IO::Socket::INET;

my $server = IO::Socket::INET->new(LocalAddr => '0.0.0.0', LocalPort => 8000, Listen => 64, ReuseAddr => 1)
    or die "cannot listen: $!\n";
$| = 1;
$SIG{CHLD} = 'IGNORE';
$SIG{TERM} = sub { exit };
while (1) {
    my $client = $server->accept or next;
    next if fork;
    serve($client);
    exit;
}

# Until the sender closes: it may send many callbacks on one connection.
sub serve {
    my ($client) = @_;
    while (defined(my $request = <$client>)) {
        my %header;
        while (defined(my $line = <$client>)) {
            $line =~ s/\r?\n$//;
            last if $line eq '';
            my ($name, $value) = split /:\s*/, $line, 2;
            $header{lc $name} = $value;
        }
        my $body = '';
        read $client, $body, $header{'content-length'} || 0;
        # One write a line: several of us share the output.
        syswrite STDOUT, join(' ', @header{'webhook-id', 'webhook-timestamp'},
            map { unpack 'H*', $_ } $header{'webhook-signature'}, $body) . "\n";
        print $client "HTTP/1.1 204 No Content\r\n\r\n";
        $client->flush;
    }
}
