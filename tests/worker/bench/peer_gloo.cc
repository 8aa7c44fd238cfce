// dpt-peer-gloo: one rank of Gloo's all-reduce, driven line by line by dpt-bench allreduce.
//
//     dpt-peer-gloo RANK SIZE FOLDER
//
// Reads "ALGORITHM BYTES WARMUP ROUNDS FRESH" from stdin (FRESH 1: every rank writes its whole vector
// before each round, and waits for the others), answers on stdout: "ok" and, on rank 0, the
// microseconds of each round; or "no WHY". Ranks find each other by files in FOLDER. The transport
// is Gloo's TCP on the loopback interface, the only one it has between processes of one machine, in
// its asynchronous mode: with synchronous, busy-polling pairs two ranks that write to each other
// stall for ever once their sockets are full.
#include <gloo/allreduce.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Context = std::shared_ptr<gloo::Context>;

Context connect(int rank, int size, const std::string &folder)
{
    gloo::transport::tcp::attr attr;
    attr.iface = "lo";
    gloo::rendezvous::FileStore store(folder);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    auto device = gloo::transport::tcp::CreateDevice(attr);
    context->connectFullMesh(store, device);
    return context;
}

// The new interface: a call an all-reduce.
std::function<void()> call(const Context &context, gloo::AllreduceOptions::Algorithm algorithm,
                           std::vector<float> &data)
{
    return [=, &data]() {
        gloo::AllreduceOptions options(context);
        options.setAlgorithm(algorithm);
        options.setOutput(data.data(), data.size()); // in place
        options.setReduceFunction([](void *c, const void *a, const void *b, size_t n) {
            gloo::sum<float>(c, a, b, n);
        });
        gloo::allreduce(options);
    };
}

// The old one: an object that keeps its buffers, run again and again.
template <typename Algorithm>
std::function<void()> object(const Context &context, std::vector<float> &data)
{
    auto algorithm = std::make_shared<Algorithm>(context, std::vector<float *>{data.data()},
                                                 static_cast<int>(data.size()));
    return [=]() { algorithm->run(); };
}

std::function<void()> make(const std::string &name, const Context &context,
                           std::vector<float> &data)
{
    if (name == "call-ring")
        return call(context, gloo::AllreduceOptions::Algorithm::RING, data);
    if (name == "call-bcube")
        return call(context, gloo::AllreduceOptions::Algorithm::BCUBE, data);
    if (name == "ring")
        return object<gloo::AllreduceRing<float>>(context, data);
    if (name == "ring-chunked")
        return object<gloo::AllreduceRingChunked<float>>(context, data);
    if (name == "halving-doubling")
        return object<gloo::AllreduceHalvingDoubling<float>>(context, data);
    if (name == "bcube")
        return object<gloo::AllreduceBcube<float>>(context, data);
    throw std::runtime_error("unknown algorithm " + name);
}

void check(const std::vector<float> &data, int size)
{
    const float factor = static_cast<float>(size * (size + 1) / 2);
    for (size_t i = 0; i < data.size(); i++)
        if (data[i] != factor * static_cast<float>(i % 97))
            throw std::runtime_error("wrong sum at element " + std::to_string(i));
}

std::string serve(const std::string &line, int rank, int size, const Context &context)
{
    std::istringstream in(line);
    std::string name;
    size_t bytes;
    int warmup, rounds, fresh;
    if (!(in >> name >> bytes >> warmup >> rounds >> fresh))
        throw std::runtime_error("cannot read '" + line + "'");
    std::vector<float> data(bytes / sizeof(float));
    const auto run = make(name, context, data);
    for (size_t i = 0; i < data.size(); i++)
        data[i] = static_cast<float>(rank + 1) * static_cast<float>(i % 97);
    run();
    check(data, size);
    data.assign(data.size(), 0.0f);
    for (int i = 0; i < warmup; i++)
        run();
    std::vector<float> here(1);
    const auto barrier = make("call-ring", context, here);
    std::ostringstream out;
    out << "ok";
    for (int i = 0; i < rounds; i++) {
        if (fresh != 0) {
            for (float &x : data)
                x = static_cast<float>(rank);
            barrier();
        }
        const auto start = std::chrono::steady_clock::now();
        run();
        const std::chrono::duration<double, std::micro> us =
            std::chrono::steady_clock::now() - start;
        if (rank == 0)
            out << ' ' << us.count();
    }
    return out.str();
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 4) {
        std::cerr << "usage: dpt-peer-gloo RANK SIZE FOLDER; started by dpt-bench allreduce\n";
        return 2;
    }
    const int rank = std::atoi(argv[1]), size = std::atoi(argv[2]);
    try {
        const Context context = connect(rank, size, argv[3]);
        for (std::string line; std::getline(std::cin, line);) {
            std::string answer;
            try {
                answer = serve(line, rank, size, context);
            } catch (const std::exception &e) {
                answer = std::string("no ") + e.what();
            }
            std::cout << answer << std::endl;
        }
    } catch (const std::exception &e) {
        std::cerr << "dpt-peer-gloo: " << e.what() << "\n";
        return 1;
    }
    return 0;
}
